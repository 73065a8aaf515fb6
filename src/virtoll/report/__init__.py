"""From estimates to a page, tables and figures. Imports nothing by itself: charts are slow to import."""
