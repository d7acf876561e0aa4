"""Records the lessons' widgets, so that the site's pages show them without Python."""
