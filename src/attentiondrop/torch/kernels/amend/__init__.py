"""Hard masking that corrects the results of torch's own attention where a row lost keys."""
