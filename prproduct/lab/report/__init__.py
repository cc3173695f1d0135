"""Reports on runs: statistics, charts, and pages in HTML and Markdown that hold the same content."""
