"""Documents with questions about them: public sets and a user's own, for the study of chunkers."""
