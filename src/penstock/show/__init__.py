"""How answers are shown: charts, pages, the terminal, progress."""
