"""What several papers need: kept runs, tables of pages, paths, real jobs on CPU slots."""
