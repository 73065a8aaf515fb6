//! Which numbered datagrams have come, so that one which comes twice hides none that was lost.

/// Which numbers of a run have come, as far back as [`Seen::REACH`]: farther than any queue on the way is long.
pub(crate) struct Seen {
    /// The number expected next: one more than the highest that came.
    next: u64,
    bits: Box<[u64]>,
}

impl Default for Seen {
    fn default() -> Seen {
        Seen {
            next: 0,
            bits: vec![0; (Seen::REACH / 64) as usize].into_boxed_slice(),
        }
    }
}

/// How a datagram came.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Came {
    InOrder,
    /// After one with a higher number, for the first time.
    Overtaken,
    /// Once more; or so late that it cannot be told from one that did.
    Again,
}

impl Seen {
    pub(crate) const REACH: u64 = 1 << 16;

    pub(crate) fn note(&mut self, number: u64) -> Came {
        if number == u64::MAX {
            return Came::Again; // nobody sends so many: it has no next
        }
        if number >= self.next {
            // Until now the bits of those that are skipped were of numbers that are out of reach.
            if number - self.next >= Seen::REACH {
                self.bits.fill(0);
            } else {
                (self.next..number).for_each(|skipped| self.set(skipped, false));
            }
            self.next = number + 1;
            self.set(number, true);
            return Came::InOrder;
        }
        if self.next - number > Seen::REACH || self.has(number) {
            return Came::Again;
        }
        self.set(number, true);
        Came::Overtaken
    }

    fn has(&self, number: u64) -> bool {
        let place = number % Seen::REACH;
        self.bits[(place / 64) as usize] >> (place % 64) & 1 == 1
    }

    fn set(&mut self, number: u64, came: bool) {
        let place = number % Seen::REACH;
        let word = &mut self.bits[(place / 64) as usize];
        *word = *word & !(1 << (place % 64)) | u64::from(came) << (place % 64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    #[test]
    fn numbers_are_remembered_as_far_as_the_reach_and_not_mixed_up_beyond_it() {
        const REACH: u64 = Seen::REACH;
        let mut seen = Seen::default();
        let came: Vec<Came> = [5, REACH + 5, REACH + 4, REACH + 4, 6, 7, 5, 4 * REACH]
            .map(|number| seen.note(number))
            .into();
        use Came::{Again, InOrder, Overtaken};
        let expected = [
            InOrder, InOrder, Overtaken, Again, Overtaken, Overtaken, Again,
        ];
        assert_eq!(came[..7], expected);
        assert_eq!(came[7], InOrder);
        assert_eq!(seen.note(3 * REACH + 4), Overtaken, "skipped, not seen");
        assert_eq!(seen.note(3 * REACH), Again, "too late to be told");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Within the reach it is a set; numbers that no sender has do no harm.
        #[test]
        fn it_agrees_with_a_set(numbers in prop::collection::vec(
            prop_oneof![0..200_u64, 65_000..66_000_u64, Just(u64::MAX), Just(u64::MAX - 1), any::<u64>()], 0..60)
        ) {
            let (mut seen, mut all, mut highest) = (Seen::default(), HashSet::new(), None);
            for number in numbers {
                let came = seen.note(number);
                if number == u64::MAX {
                    prop_assert_eq!(came, Came::Again);
                    continue;
                }
                let in_reach = highest.is_none_or(|highest: u64| number > highest || highest - number < Seen::REACH);
                let expected = match (all.insert(number) && in_reach, highest.is_none_or(|highest| number > highest)) {
                    (false, _) => Came::Again,
                    (true, true) => Came::InOrder,
                    (true, false) => Came::Overtaken,
                };
                prop_assert_eq!(came, expected, "{}", number);
                highest = highest.max(Some(number));
            }
        }
    }
}
