use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use super::{exchange::answer, *};

struct Fixed;

impl Pages for Fixed {
    fn page(&self, path: &str) -> Option<Page> {
        let (is_fine, body) = match path {
            "/fine" => (true, "fine\n".to_owned()),
            "/ill" => (false, "ill\n".to_owned()),
            "/large" => (true, "x".repeat(4 << 20)),
            "/panics" => panic!("as it should"),
            _ => return None,
        };
        let content_type = "text/plain";
        Some(Page {
            is_fine,
            content_type,
            body,
        })
    }
}

fn status(request: &str) -> Option<String> {
    let answer = answer(request.as_bytes(), &|path| page(&Fixed, path))?;
    let text = String::from_utf8(answer).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let length = head.split("Content-Length: ").nth(1).unwrap();
    let length: usize = length.split("\r\n").next().unwrap().parse().unwrap();
    let is_head = request.starts_with("HEAD");
    assert_eq!(body.len(), if is_head { 0 } else { length }, "{head}");
    assert!(head.ends_with("Connection: close"), "{head}");
    Some(head[9..12].to_owned())
}

#[test]
fn requests_have_their_answers() {
    let long = format!("GET /fine HTTP/1.1\r\nX: {}", "y".repeat(9000));
    let table = [
        ("GET /fine HTTP/1.1\r\nHost: x\r\n\r\n", Some("200")),
        ("GET /fine?a=/ill HTTP/1.0\n\n", Some("200")),
        ("HEAD /fine HTTP/1.1\r\n\r\n", Some("200")),
        ("GET /ill HTTP/1.1\r\n\r\n", Some("503")),
        ("GET /panics HTTP/1.1\r\n\r\n", Some("503")),
        ("GET / HTTP/1.1\r\n\r\n", Some("404")),
        (
            "POST /fine HTTP/1.1\r\nContent-Length: 5\r\n\r\n",
            Some("405"),
        ),
        ("GET /fine HTTP/2\r\n\r\n", Some("400")),
        ("GET /a b HTTP/1.1\r\n\r\n", Some("400")),
        ("\r\n\r\n", Some("400")),
        ("GET /fine HTTP/1.1\r\nHost: x\r\n", None),
        ("", None),
        (&long, Some("431")),
    ];
    for (request, expected) in table {
        assert_eq!(status(request).as_deref(), expected, "{request:.60}");
    }
    let junk = answer(b"\xff\xfe\n\n", &|path| page(&Fixed, path)).unwrap();
    assert!(junk.starts_with(b"HTTP/1.1 400"));
}

fn get(addr: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn slow_clients_hold_nobody_up_and_all_ends_with_the_server() {
    let server = HttpServer::start("127.0.0.1:0", Arc::new(Fixed)).unwrap();
    let addr = server.addr();
    let taken = HttpServer::start(addr, Arc::new(Fixed)).unwrap_err();
    assert!(taken.to_string().contains("listen for HTTP"), "{taken}");
    // Some say nothing, some not all, some do not take what they asked for.
    let mut slow = Vec::new();
    for n in 0..3 * MOST {
        let mut stream = TcpStream::connect(addr).unwrap();
        match n % 3 {
            0 => {}
            1 => stream.write_all(b"GET /fi").unwrap(),
            _ => stream.write_all(b"GET /large HTTP/1.1\r\n\r\n").unwrap(),
        }
        slow.push(stream);
        assert!(get(addr, "/fine").ends_with("\r\n\r\nfine\n"));
    }
    assert_eq!(
        get(addr, "/large").split_once("\r\n\r\n").unwrap().1.len(),
        4 << 20
    );
    assert!(get(addr, "/panics").starts_with("HTTP/1.1 503"));
    // who sends a body has an answer all the same
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.write_all(b"POST /fine HTTP/1.1\r\n\r\n").unwrap();
    stream.write_all(&[b'x'; 10_000]).unwrap();
    let mut text = String::new();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 405"), "{text}");
    drop(server);
    assert!(TcpStream::connect(addr).is_err(), "nobody listens any more");
}

#[test]
fn a_client_is_given_up_after_a_while() {
    let server = HttpServer::start("127.0.0.1:0", Arc::new(Fixed)).unwrap();
    let mut stream = TcpStream::connect(server.addr()).unwrap();
    stream.write_all(b"GET /fine HTTP/1.1\r\n").unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    let mut text = String::new();
    let _ = stream.read_to_string(&mut text); // closed, or reset
    assert_eq!(text, "");
}
