"""What a URL says about its page before the page is read, and when two URLs name the same one."""
