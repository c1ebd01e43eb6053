"""The documentation's pages, and what makes them."""
