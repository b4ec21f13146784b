//! Which frames the log is given at once: many, for each group is waited for once; and not more than one
//! may hold, whatever came.

use crate::record::Frame;

/// Frames of a group; more come with the next.
pub(super) const FRAMES_MAX: usize = 10_000;
/// Bytes of a group, but for a frame that has more alone.
const BYTES_MAX: usize = 8 * 1024 * 1024;

/// Cuts frames into groups, in their order.
pub(super) fn groups(mut frames: Vec<Frame>) -> Vec<Vec<Frame>> {
    let mut groups = Vec::new();
    loop {
        let mut bytes = 0;
        let is_beyond = |frame: &Frame| {
            bytes += frame.bytes_max();
            bytes > BYTES_MAX
        };
        match frames.iter().position(is_beyond) {
            Some(end) if frames.len() > 1 => {
                let rest = frames.split_off(end.max(1));
                groups.push(frames);
                frames = rest;
            }
            _ => break,
        }
    }
    if !frames.is_empty() {
        groups.push(frames);
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;
    use crate::record::{Author, Body, Site, Update, Write};

    fn frame(number: u64, bytes: usize) -> Frame {
        let rows = vec![(Key::from_bytes(b"k"), Update::Put(vec![7; bytes].into()))];
        let write = Write { start: Key::least(), version: number, rows };
        let by = Author { site: Site(u16::MAX), epoch: u64::MAX, number };
        Frame { by, body: Body::Commit(vec![write]) }
    }

    #[test]
    fn groups_have_all_frames_in_their_order_and_are_as_large_as_may_be() {
        const MB: usize = 1024 * 1024;
        let sizes = [1, 3 * MB, 4 * MB, 2 * MB, 20 * MB, 20 * MB, 1, 7 * MB, 10, 20 * MB];
        let frames: Vec<Frame> =
            (1..).zip(sizes).map(|(number, size)| frame(number, size)).collect();
        let groups = groups(frames.clone());
        let lengths: Vec<usize> = groups.iter().map(Vec::len).collect();
        assert_eq!(lengths, [3, 1, 1, 1, 3, 1]);
        for group in &groups {
            let encoded = crate::log::redo::group(group).unwrap().len();
            assert!(group.len() == 1 || encoded <= BYTES_MAX + 100, "{encoded}");
        }
        assert_eq!(groups.concat(), frames);
        assert!(super::groups(Vec::new()).is_empty());
    }
}
