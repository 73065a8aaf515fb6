"""From run directories to estimates. Never touches a machine."""
