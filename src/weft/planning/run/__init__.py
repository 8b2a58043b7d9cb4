"""What a whole run costs: failures and goodput, power, money and carbon, placement, and serving the result."""
