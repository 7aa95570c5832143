//! Tidegate in services. The examples are beside this file; each starts with how to run it.
