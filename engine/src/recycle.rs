//! Vectors of borrowing values, reused from step to step without allocating.
//!
//! A `Vec<View<'a>>` cannot be kept across steps, since the borrow ends; its allocation can. Collecting an emptied
//! vector into one of the same layout reuses the allocation (std's in-place collect), all in safe code.

/// The allocation of `vec`, emptied, as a vector of another type of the same layout.
pub fn recycle<A, B>(mut vec: Vec<A>) -> Vec<B> {
    const { assert!(size_of::<A>() == size_of::<B>() && align_of::<A>() == align_of::<B>()) };
    vec.clear();
    vec.into_iter().map(|_| unreachable!("the vector was emptied")).collect()
}

#[cfg(test)]
mod tests {
    use super::recycle;

    #[test]
    fn the_allocation_is_kept() {
        let vec: Vec<&str> = Vec::with_capacity(100);
        let place = vec.as_ptr() as usize;
        let vec: Vec<&[u8]> = recycle(vec);
        assert_eq!((vec.as_ptr() as usize, vec.capacity()), (place, 100));
    }
}
