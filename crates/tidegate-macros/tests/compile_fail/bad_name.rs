#[tidegate_macros::rate_limit("10/s", name = "a search")]
async fn search() -> Result<(), ()> {
    Ok(())
}

fn main() {}
