//! An external authorization service (`envoy.service.auth.v3.Authorization`).
//!
//! A request with `x-permit: yes` is permitted and gets the header `x-permitted-by`. Any other request is denied with
//! status 403 and a body with the reason.

use sluice_proto::envoy::config::core::v3::{HeaderValue, HeaderValueOption};
use sluice_proto::envoy::service::auth::v3::authorization_server::{Authorization, AuthorizationServer};
use sluice_proto::envoy::service::auth::v3::check_response::HttpResponse;
use sluice_proto::envoy::service::auth::v3::{CheckRequest, CheckResponse, DeniedHttpResponse, OkHttpResponse};
use sluice_proto::envoy::r#type::v3::{HttpStatus, StatusCode};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Code, Request, Response, Status};

pub(crate) async fn serve(listener: TcpListener) {
    let server = tonic::transport::Server::builder().add_service(AuthorizationServer::new(Guard));
    let _ = server.serve_with_incoming(TcpListenerStream::new(listener)).await;
}

struct Guard;

#[tonic::async_trait]
impl Authorization for Guard {
    async fn check(&self, request: Request<CheckRequest>) -> Result<Response<CheckResponse>, Status> {
        let attributes = request.into_inner().attributes;
        let http = attributes.and_then(|attributes| attributes.request).and_then(|request| request.http);
        let permitted = http.is_some_and(|http| http.headers.get("x-permit").is_some_and(|value| value == "yes"));
        let (code, answer) = if permitted {
            let header = HeaderValue { key: "x-permitted-by".into(), value: "guard".into(), ..Default::default() };
            let headers = vec![HeaderValueOption { header: Some(header), ..Default::default() }];
            (Code::Ok, HttpResponse::OkResponse(OkHttpResponse { headers, ..Default::default() }))
        } else {
            let status = Some(HttpStatus { code: StatusCode::Forbidden.into() });
            let body = "denied by the external authorization service".to_owned();
            let denied = DeniedHttpResponse { status, body, ..Default::default() };
            (Code::PermissionDenied, HttpResponse::DeniedResponse(denied))
        };
        let status = sluice_proto::google::rpc::Status { code: code.into(), ..Default::default() };
        Ok(Response::new(CheckResponse { status: Some(status), http_response: Some(answer), ..Default::default() }))
    }
}
