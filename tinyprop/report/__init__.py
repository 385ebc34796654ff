"""What commands print and write: tables, estimates, figures, and files that are whole or not there."""
