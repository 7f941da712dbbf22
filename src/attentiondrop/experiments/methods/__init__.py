"""What is compared: attention specs and other regularisers. One file a comparator, with its tuning grid."""
