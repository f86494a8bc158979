"""`lnk`, the person's command: one module a noun, one for what is shown."""
