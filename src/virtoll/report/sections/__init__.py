"""The questions a report answers, one file each; `base.Section` is what each is derived from."""
