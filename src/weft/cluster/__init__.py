"""Who runs where and what to do when something breaks: decisions only, carried out by engines and simulations."""
