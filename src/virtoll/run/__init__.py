"""From a request to a run directory and its report. The one writer of what trials give."""
