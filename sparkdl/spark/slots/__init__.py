"""Task slots: what tasks request, how many run at a time, and how many workers a fit takes."""
