//! Plain HTTP: the relay's information document (NIP-11) with what the gateway adds to it, and
//! all other pages as they are.

use std::net::IpAddr;

use axum::body::Body;
use axum::http::header::{self, HeaderMap, HeaderValue};
use axum::http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::{Map, Value, json};

use super::door::{place, plain};
use super::{Shared, forwarded};
use crate::config::GatewayLimits;

/// A document is a few kB; a larger one is not read.
const MAX_DOCUMENT: usize = 256 << 10;

/// The most of any other page that is passed on: icons and web clients are smaller.
const MAX_PAGE: usize = 16 << 20;

const DOCUMENT: &str = "application/nostr+json";

/// Passes a request on, and its answer back.
pub(super) async fn pass(shared: &Shared, request: &Request<Incoming>, from: IpAddr) -> Response<Body> {
    // A browser asks by OPTIONS whether a page of another site may read the document.
    if !matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS) {
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET, HEAD and OPTIONS are passed on");
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD, OPTIONS"));
        return response;
    }
    let is_document = request.method() == Method::GET && wants_document(request.headers());
    let mut headers = forwarded::headers(request.headers(), from, &shared.trusted);
    if is_document {
        // It has to be read here.
        headers.remove(header::ACCEPT_ENCODING);
    }
    let answer = match shared.upstream.ask(request.method().clone(), place(request), headers).await {
        Ok(answer) => answer,
        Err(error) => {
            tracing::debug!(error = %error.without_url(), "the relay gives no page");
            return plain(StatusCode::BAD_GATEWAY, "the relay cannot be reached");
        }
    };
    let mut response = Response::new(Body::empty());
    *response.status_mut() = answer.status();
    *response.headers_mut() = forwarded::end_to_end(answer.headers());
    *response.body_mut() = if is_document && answer.status() == StatusCode::OK {
        match document(answer, &shared.limits).await {
            Some(document) => Body::from(document),
            None => return plain(StatusCode::BAD_GATEWAY, "the relay's document is too large, or broke off"),
        }
    } else {
        // It is known to be right once it is passed on to its end.
        let length = answer.headers().get(header::CONTENT_LENGTH).cloned();
        response.headers_mut().extend(length.map(|length| (header::CONTENT_LENGTH, length)));
        stream(answer)
    };
    response
}

/// The relay's document with what the gateway adds; one that is no JSON object stays as it is.
async fn document(mut answer: reqwest::Response, limits: &GatewayLimits) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.ok()? {
        body.extend_from_slice(&chunk);
        if body.len() > MAX_DOCUMENT {
            return None;
        }
    }
    let Ok(mut document) = serde_json::from_slice::<Map<String, Value>>(&body) else { return Some(body) };
    amend(&mut document, limits);
    serde_json::to_vec(&document).ok()
}

/// Adds NIP-77, and what the gateway allows.
fn amend(document: &mut Map<String, Value>, limits: &GatewayLimits) {
    let nips = document.entry("supported_nips").or_insert_with(|| json!([]));
    if let Some(nips) = nips.as_array_mut()
        && !nips.contains(&json!(77))
    {
        nips.push(json!(77));
    }
    // The version of the protocol, as strfry says it.
    document.insert("negentropy".to_owned(), json!(1));
    let limitation = document.entry("limitation").or_insert_with(|| json!({}));
    if let Some(limitation) = limitation.as_object_mut() {
        let own = limits.message_bytes as u64;
        let length = limitation.get("max_message_length").and_then(Value::as_u64).map_or(own, |length| length.min(own));
        limitation.insert("max_message_length".to_owned(), json!(length));
        limitation.insert("max_negentropy_events".to_owned(), json!(super::budget::most_events(limits)));
        limitation.insert("max_negentropy_sessions".to_owned(), json!(limits.sessions_per_connection));
    }
}

/// A page as it comes, no faster than the client takes it.
fn stream(answer: reqwest::Response) -> Body {
    let chunks = futures::stream::try_unfold((answer, 0), async |(mut answer, read)| {
        let Some(chunk) = answer.chunk().await.map_err(std::io::Error::other)? else { return Ok(None) };
        let read: usize = read + chunk.len();
        if read > MAX_PAGE {
            Err(std::io::Error::other("the page is too large"))
        } else {
            Ok(Some((chunk, (answer, read))))
        }
    });
    Body::from_stream(chunks)
}

fn wants_document(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT);
    accepted.iter().filter_map(|value| value.to_str().ok()).any(|value| value.contains(DOCUMENT))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amended(document: Value) -> Value {
        let mut document = document.as_object().unwrap().clone();
        amend(&mut document, &GatewayLimits::default());
        Value::Object(document)
    }

    #[test]
    fn a_document_is_added_to_and_never_loses() {
        let added = json!({
            "max_message_length": 2_500_000, "max_negentropy_events": 1_000_000, "max_negentropy_sessions": 8
        });
        let expected = json!({"supported_nips": [77], "negentropy": 1, "limitation": added});
        assert_eq!(amended(json!({})), expected);
        let document = amended(json!({
            "name": "n", "supported_nips": [1, 77, "x"],
            "limitation": {"max_message_length": 65_536, "auth_required": true}
        }));
        assert_eq!(document["supported_nips"], json!([1, 77, "x"]));
        assert_eq!((&document["name"], &document["limitation"]["auth_required"]), (&json!("n"), &json!(true)));
        assert_eq!(document["limitation"]["max_message_length"], 65_536);
        let odd = amended(json!({"supported_nips": "1", "limitation": 5}));
        assert_eq!(odd, json!({"supported_nips": "1", "limitation": 5, "negentropy": 1}));
    }
}
