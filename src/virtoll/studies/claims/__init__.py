"""What the papers published, as data: one TOML file a study, read by virtoll.analysis.claims."""
