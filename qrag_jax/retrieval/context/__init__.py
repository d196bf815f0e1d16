"""What a reader is given: passages within a budget, widened, and citations of them."""
