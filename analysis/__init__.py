"""Tables, figures and verdicts from logged runs; reads files only and needs no torch."""
