"""What the browser gets: the page at `/`, as plain files without a build step."""
