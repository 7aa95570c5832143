#[tidegate_macros::rate_limit("100/fortnight", key = user)]
async fn search(user: u64) -> Result<(), ()> {
    Ok(())
}

fn main() {}
