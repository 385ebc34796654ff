"""What commands print and write: tables, estimates, figures, and files written whole or not at
all."""
