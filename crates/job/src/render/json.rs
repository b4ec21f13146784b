//! Renders events as JSON, one object per line.

use std::io::{self, Write};

use super::Render;
use crate::event::Event;

/// A renderer that writes each event as one line of JSON.
pub struct JsonLines<W>(
    /// The output to which the lines are written.
    pub W,
);

impl<W: Write + Send + 'static> Render for JsonLines<W> {
    fn show(&mut self, event: &Event) -> io::Result<()> {
        let mut line = serde_json::to_vec(event)?;
        line.push(b'\n');
        // One write per line, so that lines of other writers come between lines, not into them.
        self.0.write_all(&line)?;
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Body, Progress};
    use crate::id::JobId;
    use serde_json::{Value, json};

    fn line(body: Body) -> Value {
        let job = JobId::from_parts(0, 0);
        let event = Event { at_ms: 5, job, kind: "copy".to_owned(), body };
        let mut lines = Vec::new();
        JsonLines(&mut lines).render(&event);
        let read: Event = serde_json::from_slice(&lines).unwrap();
        assert_eq!(read, event, "an event is read back as itself");
        assert_eq!(lines.iter().filter(|byte| **byte == b'\n').count(), 1);
        serde_json::from_slice(&lines).unwrap()
    }

    impl JsonLines<&mut Vec<u8>> {
        fn render(&mut self, event: &Event) {
            let mut line = JsonLines(Vec::new());
            line.show(event).unwrap();
            self.0.extend(line.0);
        }
    }

    #[test]
    fn the_field_names_are_stable() {
        let phase = line(Body::Phase { from: None, to: "copy".to_owned() });
        let expected = json!({
            "at_ms": 5, "job": "000000000-0000", "kind": "copy",
            "event": "phase", "from": null, "to": "copy",
        });
        assert_eq!(phase, expected);
    }

    #[test]
    fn progress_is_flat_and_unknown_is_null() {
        let progress = Progress { documents_done: 3, lag_ms: Some(12), ..Progress::default() };
        let line = line(Body::Progress(Box::new(progress)));
        assert_eq!(line["event"], "progress");
        assert_eq!(line["documents_done"], 3);
        assert_eq!(line["lag_ms"], 12);
        assert_eq!(line["eta_ms"], Value::Null);
        assert_eq!(line["cutover_obstacles"], json!([]));
    }

    #[test]
    fn endings_have_a_name_each() {
        let named = |body| line(body)["event"].clone();
        assert_eq!(named(Body::Done), "done");
        assert_eq!(named(Body::Interrupted), "interrupted");
        assert_eq!(named(Body::Failed { error: String::new() }), "failed");
    }
}
