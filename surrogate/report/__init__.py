"""From the results of a comparison to what people read: tables, CSV, figures, one HTML page."""
