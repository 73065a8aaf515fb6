"""Local files that survive a power cut, and run directories from elsewhere that are not trusted."""
