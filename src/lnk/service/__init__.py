"""The engine's process: the program `lnk-link-memory`, and its sessions."""
