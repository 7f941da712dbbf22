"""Hard masking that runs torch's own attention and then corrects the rows that lost keys."""
