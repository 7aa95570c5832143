#[tidegate_macros::rate_limit("10/s")]
struct Search;

fn main() {}
