// Package cluster pins the modules whose archives have the CRDs, and the conformance tests of the Gateway API.
package cluster

import (
	_ "istio.io/api/annotation"
	_ "sigs.k8s.io/gateway-api/apis/v1"
	_ "sigs.k8s.io/gateway-api/conformance"
)
