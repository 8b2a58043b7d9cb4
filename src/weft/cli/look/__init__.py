"""Commands that show what runs and what has run: the console in a browser, and the doctor."""
