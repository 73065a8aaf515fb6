"""From estimates to a page, tables and figures."""
