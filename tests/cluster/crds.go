// Package cluster pins the modules whose archives have the CRDs.
package cluster

import (
	_ "istio.io/api/annotation"
	_ "sigs.k8s.io/gateway-api/apis/v1"
)
