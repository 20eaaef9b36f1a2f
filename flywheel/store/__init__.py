"""Store trajectories, labels and lineage: Parquet partitions, their versions in DVC, and the DuckDB catalogue."""
