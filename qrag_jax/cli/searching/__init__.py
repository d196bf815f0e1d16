"""What `qrag find` and `qrag ask` share: what is searched and by what, and how passages are shown."""
