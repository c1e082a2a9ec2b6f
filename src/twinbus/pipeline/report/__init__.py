"""Reports: one HTML file each, with its charts inside, that opens anywhere and asks nobody."""
