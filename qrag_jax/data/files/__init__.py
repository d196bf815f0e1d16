"""What readers share: files, rows and fields with errors that name their place."""
