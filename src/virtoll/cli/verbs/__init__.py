"""What each verb does: `do` of the module of its name, which is imported when the verb is asked for."""
