"""What a person sees: tables that fit, figures as people write them, and signs of life."""
