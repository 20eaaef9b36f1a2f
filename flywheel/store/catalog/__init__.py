"""Query the store in SQL by DuckDB views, compact its small files, and tell how the stages of iterations ran."""
