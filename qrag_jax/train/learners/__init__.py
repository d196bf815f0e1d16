"""The other learners; each uses the common trainer."""
