//! A file of recorded operations: BSON documents, one after another, that standard tools (`bsondump`) can print.
//!
//! The first document is a header. A form of operations is written once, before its first operation; an operation is the
//! number of its form and its values. Unless asked otherwise, values are written as hashes with the part of the documents
//! below them ([`Datum::Hidden`]), since keys may be personal data. A hash still tells whether a value that is known occurs.
//!
//! Invariants: a file that ends within a document is read up to there; what could not be written as it was is counted.

mod form;

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use bson::raw::{RawArrayBuf, RawBsonRef, RawDocument};
use bson::{Binary, RawDocumentBuf, rawdoc};
use imago_plan::shard_key::Kind;

use super::dictionary::hash_of;
use super::operation::Operation;
use super::positions::Positions;
use super::predicate::{Bound, Datum, Ignored};
use super::source::{Observed, Source, SourceFacts, Uses};
use crate::error::{Error, Result};
use crate::namespace::Namespace;
use form::{BoundForm, Form, form_of, read_form, template};

/// Version of the format, the value of the header's first field.
const VERSION: i32 = 1;
const HEADER: &str = "imagoOperations";
/// Largest number of forms in a file; operations of further ones are written with their kind alone.
const FORMS_MAX: usize = 60_000;
/// Largest size of a document of the file, in bytes.
const DOCUMENT_MAX: usize = 64 << 20;
/// Bytes of a hidden value: its hash and the part below it.
const HIDDEN_BYTES: usize = 12;

/// Writes operations to a file.
#[derive(Debug)]
pub(super) struct Writer {
    path: PathBuf,
    out: BufWriter<File>,
    forms: HashMap<Form, i32>,
    /// What hides values; `None` writes them as they are.
    positions: Option<Positions>,
    pub(super) operations: u64,
}

impl Writer {
    /// Creates the file `path` for the operations on the collection `ns`.
    ///
    /// # Errors
    /// Usage if the file exists or cannot be created.
    pub(super) fn create(
        path: &Path,
        ns: &Namespace,
        positions: Option<Positions>,
    ) -> Result<Self> {
        // Keys may be personal data: the file is its owner's alone.
        let file = File::options().write(true).create_new(true).mode(0o600).open(path);
        let file = file.map_err(|cause| {
            Error::usage(
                format!("the recording {} cannot be created: {cause}", path.display()),
                "name a file that does not exist yet, in a directory that does",
            )
        })?;
        let values = if positions.is_some() { "hashed" } else { "plain" };
        let mut writer = Self {
            path: path.to_owned(),
            out: BufWriter::new(file),
            forms: HashMap::new(),
            positions,
            operations: 0,
        };
        writer
            .put(&rawdoc! {"imagoOperations": VERSION, "ns": ns.to_string(), "values": values})?;
        Ok(writer)
    }

    fn put(&mut self, document: &RawDocument) -> Result<()> {
        let put = self.out.write_all(document.as_bytes());
        put.map_err(|cause| failed(&self.path, "written", &cause.to_string()))
    }

    /// Writes an operation.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn write(&mut self, operation: &Operation) -> Result<()> {
        let mut form = form_of(operation);
        if self.forms.len() >= FORMS_MAX && !self.forms.contains_key(&form) {
            form = Form {
                bounds: Vec::new(),
                sets: Vec::new(),
                ignored: vec![Ignored::TooMany],
                is_unknown: true,
                is_unseen_insert: form.kind == Kind::Insert,
                ..form
            };
        }
        let number = match self.forms.get(&form) {
            Some(number) => *number,
            None => self.add_form(&form)?,
        };
        let mut document = rawdoc! {"f": number, "n": operation.documents.cast_signed()};
        if let Some(transaction) = operation.transaction {
            document.append(bson::raw::cstr!("t"), transaction.cast_signed());
        }
        if !form.bounds.is_empty() {
            self.append_values(&mut document, operation);
        }
        self.operations += 1;
        self.put(&document)
    }

    fn add_form(&mut self, form: &Form) -> Result<i32> {
        let number = self.forms.len() as i32;
        let document = form.document(number);
        let document = RawDocumentBuf::try_from(&document)
            .map_err(|cause| failed(&self.path, "written", &cause.to_string()))?;
        self.put(&document)?;
        self.forms.insert(form.clone(), number);
        Ok(number)
    }

    fn append_values(&self, document: &mut RawDocumentBuf, operation: &Operation) {
        let Some(positions) = &self.positions else {
            let mut values = RawArrayBuf::new();
            for_each_value(operation, |_, part| match part {
                ValuePart::Length(length) => values.push(length as i64),
                ValuePart::Datum(Datum::Plain(id)) => values.push(bson::RawBson::from(id.as_raw())),
                ValuePart::Datum(Datum::Hidden { .. }) => unreachable!("commands have values"),
            });
            return document.append(bson::raw::cstr!("v"), values);
        };
        let mut bytes = Vec::with_capacity(operation.bounds.len() * HIDDEN_BYTES);
        for_each_value(operation, |path, part| {
            let (hash, below) = match part {
                ValuePart::Length(length) => (length as i64, 0),
                ValuePart::Datum(Datum::Plain(id)) => (hash_of(id), positions.below(path, id)),
                ValuePart::Datum(Datum::Hidden { hash, below }) => (*hash, *below),
            };
            bytes.extend_from_slice(&hash.to_le_bytes());
            bytes.extend_from_slice(&below.to_le_bytes());
        });
        let binary = Binary { subtype: bson::spec::BinarySubtype::Generic, bytes };
        document.append(bson::raw::cstr!("v"), bson::RawBson::Binary(binary));
    }

    /// Writes what is buffered to the operating system.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn flush(&mut self) -> Result<()> {
        let flushed = self.out.flush();
        flushed.map_err(|cause| failed(&self.path, "written", &cause.to_string()))
    }
}

fn failed(path: &Path, what: &str, cause: &str) -> Error {
    Error::usage(
        format!("the recording {} cannot be {what}: {cause}", path.display()),
        "check the file and the space on its disk",
    )
}

/// A part of an operation's values in a file: the length of a list that follows, or a value.
enum ValuePart<'a> {
    Length(usize),
    Datum(&'a Datum),
}

fn for_each_value<'a>(operation: &'a Operation, mut each: impl FnMut(&'a str, ValuePart<'a>)) {
    for (path, bound) in &operation.bounds {
        match bound {
            Bound::Equal(value) => each(path, ValuePart::Datum(value)),
            Bound::In(values) => {
                each(path, ValuePart::Length(values.len()));
                values.iter().for_each(|value| each(path, ValuePart::Datum(value)));
            }
            Bound::Between(low, high) => {
                let ends = low.iter().chain(high);
                ends.for_each(|value| each(path, ValuePart::Datum(value)));
            }
        }
    }
}

/// A file of recorded operations, as a source.
pub(super) struct Recording {
    path: PathBuf,
    operations: u64,
    is_torn: bool,
    is_hashed: bool,
}

impl Recording {
    /// Opens the recording at `path` of operations on the collection `ns`.
    ///
    /// # Errors
    /// Usage if the file cannot be read, is no recording, or is one of another collection.
    pub(super) fn open(path: &Path, ns: &Namespace) -> Result<Self> {
        let mut reader = open(path)?;
        let mut bytes = Vec::new();
        let header = next_document(&mut reader, &mut bytes)
            .map_err(|cause| failed(path, "read", &cause.to_string()))?;
        let header = header
            .filter(|header| header.get_i32(HEADER).is_ok())
            .ok_or_else(|| failed(path, "read", "it is no recording of `imago reshard record`"))?;
        if header.get_i32(HEADER).ok() != Some(VERSION) {
            return Err(failed(path, "read", "it is of another version of Imago"));
        }
        let of = header.get_str("ns").unwrap_or_default();
        if of != ns.to_string() {
            return Err(Error::usage(
                format!("the recording {} is of {of}, not of {ns}", path.display()),
                format!("name it with --ns {of}"),
            ));
        }
        let is_hashed = header.get_str("values").is_ok_and(|values| values == "hashed");
        Ok(Self { path: path.to_owned(), operations: 0, is_torn: false, is_hashed })
    }
}

fn open(path: &Path) -> Result<BufReader<File>> {
    let file = File::open(path).map_err(|cause| failed(path, "read", &cause.to_string()))?;
    Ok(BufReader::with_capacity(1 << 16, file))
}

/// Reads the next document into `bytes`; `None` at the end of the file.
///
/// # Errors
/// `UnexpectedEof` if the file ends within a document; `InvalidData` for what is no document.
fn next_document<'a>(
    reader: &mut impl Read,
    bytes: &'a mut Vec<u8>,
) -> std::io::Result<Option<&'a RawDocument>> {
    let mut length = [0; 4];
    let mut read = 0;
    while read < length.len() {
        match reader.read(&mut length[read..])? {
            0 if read == 0 => return Ok(None),
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            more => read += more,
        }
    }
    let size = u32::from_le_bytes(length) as usize;
    let invalid = |cause: String| std::io::Error::new(std::io::ErrorKind::InvalidData, cause);
    if !(5..=DOCUMENT_MAX).contains(&size) {
        return Err(invalid(format!("a document of {size} bytes")));
    }
    bytes.resize(size, 0);
    bytes[..4].copy_from_slice(&length);
    reader.read_exact(&mut bytes[4..])?;
    RawDocument::from_bytes(bytes).map(Some).map_err(|cause| invalid(cause.to_string()))
}

/// Receives the template of an operation with the forms of its conditions, its document, and the number of its form. Returns
/// false if the document is damaged.
type EachOperation<'a> =
    dyn FnMut(&mut Operation, &[BoundForm], &RawDocument, usize) -> Result<bool> + 'a;

impl Recording {
    /// Calls `each` with the form and the document of each operation.
    fn for_each(&mut self, each: &mut EachOperation<'_>) -> Result<()> {
        (self.operations, self.is_torn) = (0, false);
        let mut reader = open(&self.path)?;
        let mut forms: Vec<(Operation, Vec<BoundForm>)> = Vec::new();
        let mut bytes = Vec::new();
        loop {
            let document = match next_document(&mut reader, &mut bytes) {
                Ok(Some(document)) => document,
                Ok(None) => return Ok(()),
                Err(cause) if cause.kind() == std::io::ErrorKind::UnexpectedEof => {
                    self.is_torn = true;
                    return Ok(());
                }
                Err(cause) => return Err(failed(&self.path, "read", &cause.to_string())),
            };
            if let Ok(number) = document.get_i32("f") {
                let number = usize::try_from(number).unwrap_or(usize::MAX);
                let done = match forms.get_mut(number) {
                    Some((operation, bounds)) => each(operation, bounds, document, number)?,
                    None => false,
                };
                if !done {
                    return Err(failed(&self.path, "read", "an operation is damaged"));
                }
                self.operations += 1;
            } else if document.get_i32("form").is_ok() {
                let form = read_form(document);
                let form = form.ok_or_else(|| failed(&self.path, "read", "a form is damaged"))?;
                let bounds = form.bounds.iter().map(|(_, bound)| *bound).collect();
                forms.push((template(form), bounds));
            }
        }
    }
}

impl Source for Recording {
    fn read(&mut self, each: &mut dyn FnMut(Observed<'_>) -> Result<()>) -> Result<()> {
        self.for_each(&mut |operation, bounds, document, _| {
            if set_values(operation, bounds, document).is_none() {
                return Ok(false);
            }
            each(Observed { operation, shard: None }).map(|()| true)
        })
    }

    fn survey(&mut self) -> Result<Uses> {
        let mut counts: Vec<(u64, Operation)> = Vec::new();
        self.for_each(&mut |operation, _, _, number| {
            while counts.len() <= number {
                counts.push((0, Operation::clone(operation)));
            }
            if counts[number].0 == 0 {
                counts[number].1 = operation.clone();
            }
            counts[number].0 += 1;
            Ok(true)
        })?;
        let mut uses = Uses::default();
        for (count, operation) in counts.iter().filter(|(count, _)| *count > 0) {
            uses.add(operation, *count);
        }
        Ok(uses)
    }

    fn facts(&self) -> SourceFacts {
        let mut notes = Vec::new();
        if self.is_hashed {
            notes.push("values are hashes: positions of ranges are approximate".to_owned());
        }
        if self.is_torn {
            notes.push("the file ends within an operation; those before it count".to_owned());
        }
        SourceFacts {
            source: format!("recording {}", self.path.display()),
            operations: self.operations,
            share: Some(1.0),
            seconds: None,
            notes,
        }
    }
}

/// The values of an operation in a file, one after another.
enum Values<'a> {
    Plain(Box<dyn Iterator<Item = RawBsonRef<'a>> + 'a>),
    Hidden(&'a [u8]),
}

impl Values<'_> {
    fn next(&mut self) -> Option<Datum> {
        match self {
            Self::Plain(values) => Some(super::predicate::plain(values.next()?)),
            Self::Hidden(rest) => {
                let (first, after) = rest.split_first_chunk::<HIDDEN_BYTES>()?;
                *rest = after;
                let hash = i64::from_le_bytes(first[..8].try_into().expect("eight bytes"));
                let below = u32::from_le_bytes(first[8..].try_into().expect("four bytes"));
                Some(Datum::Hidden { hash, below })
            }
        }
    }

    fn length(&mut self) -> Option<usize> {
        let length = match self.next()? {
            Datum::Hidden { hash, .. } => hash,
            Datum::Plain(id) => match id.as_raw() {
                RawBsonRef::Int64(length) => length,
                _ => return None,
            },
        };
        usize::try_from(length).ok().filter(|length| *length <= DOCUMENT_MAX)
    }
}

/// Sets the values of `operation`, with conditions of the forms `bounds`, to those of `document`. Returns `None` if it is
/// damaged.
fn set_values(
    operation: &mut Operation,
    bounds: &[BoundForm],
    document: &RawDocument,
) -> Option<()> {
    let mut values = match document.get("v").ok()? {
        None => Values::Hidden(&[]),
        Some(RawBsonRef::Binary(binary)) => Values::Hidden(binary.bytes),
        Some(RawBsonRef::Array(array)) => Values::Plain(Box::new(array.into_iter().flatten())),
        Some(_) => return None,
    };
    for ((_, bound), form) in operation.bounds.iter_mut().zip(bounds) {
        *bound = match form {
            BoundForm::Equal => Bound::Equal(values.next()?),
            BoundForm::In => {
                let length = values.length()?;
                Bound::In((0..length).map(|_| values.next()).collect::<Option<_>>()?)
            }
            BoundForm::Between => Bound::Between(Some(values.next()?), Some(values.next()?)),
            BoundForm::From => Bound::Between(Some(values.next()?), None),
            BoundForm::To => Bound::Between(None, Some(values.next()?)),
            BoundForm::Open => Bound::Between(None, None),
        };
    }
    operation.documents = document.get_i32("n").ok()?.cast_unsigned();
    operation.transaction = document.get_i64("t").ok().map(i64::cast_unsigned);
    Some(())
}

#[cfg(test)]
mod tests;
