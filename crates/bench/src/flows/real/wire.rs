//! A long wire, made in user space: what a host sends over TCP leaves it later.
//!
//! Not every kernel can delay packets. So the host's routes lead its TCP packets into a device of
//! this process (`tun`), which keeps each one for as long as the way to its destination takes, and
//! then sends it as it is, over the host's real link. The kernel's TCP sees a path as long as that:
//! its round trips, slow start and recovery are those of the long path.
//!
//! Invariants: a packet leaves no sooner than its latency after it was sent; packets to one host
//! leave in the order in which they came.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::ioctl::{Updater, ioctl, opcode};
use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sendto, socket};

use super::orders::address;

/// The device of a host that its TCP packets go into.
pub(super) const DEVICE: &str = "long";
/// More packets on the way to one host are lost, as on a wire that ends in a full queue.
const PACKETS_MAX: usize = 10_000;
const PACKET_BYTES_MAX: usize = 2_048;
/// Where an IPv4 packet says to whom it goes.
const TO: std::ops::Range<usize> = 16..20;

type Packet = (Instant, Vec<u8>);

/// Has the packets to each host, by number, leave so much later, until this process ends.
pub(super) fn lengthen(latencies: &[Duration]) -> std::io::Result<()> {
    let tun = attach()?;
    let link = Arc::new(socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::RAW))?);
    let mut wires = Vec::new();
    for (host, latency) in latencies.iter().enumerate() {
        let (entry, packets) = mpsc::sync_channel(PACKETS_MAX);
        let (to, link) = (address(host), Arc::clone(&link));
        let run = move || carry(&packets, &link, to);
        thread::Builder::new().name(format!("wire-{host}")).spawn(run)?;
        wires.push((to, *latency, entry));
    }
    thread::Builder::new().name("wires".into()).spawn(move || take(tun, &wires))?;
    Ok(())
}

/// The end of [`DEVICE`] at which its packets come out; the device is there as long as this is.
fn attach() -> std::io::Result<File> {
    /// The kernel's `struct ifreq`, as far as it matters here.
    #[repr(C)]
    struct Request {
        name: [u8; 16],
        flags: u16,
        rest: [u8; 22],
    }
    /// Of the kernel's `linux/if_tun.h`: packets of IP, with nothing before them.
    const TUN_WITHOUT_HEADER: u16 = 0x0001 | 0x1000;
    const TUN_SET_INTERFACE: u32 = opcode::write::<i32>(b'T', 202);
    let tun = OpenOptions::new().read(true).write(true).open("/dev/net/tun")?;
    let mut request = Request { name: [0; 16], flags: TUN_WITHOUT_HEADER, rest: [0; 22] };
    request.name[..DEVICE.len()].copy_from_slice(DEVICE.as_bytes());
    #[expect(unsafe_code, reason = "there is no safe form of this request to the kernel")]
    // SAFETY: this request reads and writes one `struct ifreq` of 40 bytes, which `Request` is; it
    // lives until the call is over, and the kernel keeps no pointer to it.
    unsafe {
        ioctl(&tun, Updater::<TUN_SET_INTERFACE, Request>::new(&mut request))?;
    }
    Ok(tun)
}

/// Takes what comes, and sees that it leaves at its time.
fn take(mut tun: File, wires: &[(SocketAddrV4, Duration, SyncSender<Packet>)]) {
    let mut buffer = [0; PACKET_BYTES_MAX];
    loop {
        let packet = match tun.read(&mut buffer) {
            Ok(bytes) => &buffer[..bytes],
            Err(cause) => return tracing::error!(%cause, "a host can send no more"),
        };
        let is_to = |to: &SocketAddrV4| packet.get(TO) == Some(&to.ip().octets());
        // What goes elsewhere is the kernel's own talk about neighbours.
        let Some((_, latency, entry)) = wires.iter().find(|(to, ..)| is_to(to)) else { continue };
        match entry.try_send((Instant::now() + *latency, packet.to_vec())) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => tracing::warn!("more packets than fit on a wire"),
            Err(TrySendError::Disconnected(_)) => return,
        }
    }
}

fn carry(packets: &Receiver<Packet>, link: &OwnedFd, to: SocketAddrV4) {
    for (at, packet) in packets {
        thread::sleep(at.saturating_duration_since(Instant::now()));
        // A link may lose what does not fit; TCP sends it again.
        if let Err(cause) = sendto(link, &packet, SendFlags::empty(), &to) {
            tracing::warn!(%cause, %to, "a packet is lost at its host's own link");
        }
    }
}
