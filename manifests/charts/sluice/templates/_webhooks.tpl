{{- /* One webhook for injection, from a dict of name, namespaces and objects (label selectors), values and namespace. */}}
{{- define "sluice.injectionWebhook" -}}
- name: {{ .name }}.sidecar-injector.istio.io
  clientConfig:
    {{- with .values.istiodRemote.injectionURL }}
    url: {{ quote . }}
    {{- else }}
    service:
      name: {{ include "sluice.name" .values }}
      namespace: {{ .namespace }}
      path: {{ .values.istiodRemote.injectionPath | quote }}
      port: 443
    {{- end }}
    {{- with .values.istiodRemote.injectionCABundle }}
    caBundle: {{ quote . }}
    {{- end }}
  rules:
  - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}
  namespaceSelector:
    matchExpressions: {{ toJson .namespaces }}
  objectSelector:
    matchExpressions: {{ toJson .objects }}
  admissionReviewVersions: [v1]
  failurePolicy: Fail
  reinvocationPolicy: {{ .values.sidecarInjectorWebhook.reinvocationPolicy }}
  sideEffects: None
{{- end }}

{{- /*
The webhooks that select pods of a revision or of a tag, from a dict of label, values and namespace. Those of the label `default` also
select by the labels istio-injection and sidecar.istio.io/inject.
*/}}
{{- define "sluice.injectionWebhooks" -}}
{{- $inject := "sidecar.istio.io/inject" }}
{{- $noRevision := dict "key" "istio.io/rev" "operator" "DoesNotExist" }}
{{- $noInjection := dict "key" "istio-injection" "operator" "DoesNotExist" }}
{{- $isRevision := dict "key" "istio.io/rev" "operator" "In" "values" (list .label) }}
{{- $notDisabled := dict "key" $inject "operator" "NotIn" "values" (list "false") }}
{{- $webhooks := list
  (dict "name" "rev.namespace" "namespaces" (list $isRevision $noInjection) "objects" (list $notDisabled))
  (dict "name" "rev.object" "namespaces" (list $noRevision $noInjection) "objects" (list $notDisabled $isRevision)) }}
{{- if eq .label "default" }}
{{- $webhooks = concat $webhooks (list
  (dict "name" "namespace"
    "namespaces" (list (dict "key" "istio-injection" "operator" "In" "values" (list "enabled")))
    "objects" (list $notDisabled))
  (dict "name" "object"
    "namespaces" (list $noInjection $noRevision)
    "objects" (list (dict "key" $inject "operator" "In" "values" (list "true")) $noRevision))) }}
{{- if .values.sidecarInjectorWebhook.enableNamespacesByDefault }}
{{- $system := list "kube-system" "kube-public" "kube-node-lease" "local-path-storage" }}
{{- $webhooks = append $webhooks (dict "name" "auto"
  "namespaces" (list $noInjection $noRevision (dict "key" "kubernetes.io/metadata.name" "operator" "NotIn" "values" $system))
  "objects" (list (dict "key" $inject "operator" "DoesNotExist") $noRevision)) }}
{{- end }}
{{- end }}
{{- $common := pick . "values" "namespace" }}
{{- range $webhooks }}
{{ include "sluice.injectionWebhook" (merge . $common) }}
{{- end }}
{{- end }}

{{- /* The rule that matches objects of the mesh. */}}
{{- define "sluice.validatedObjects" -}}
- apiGroups: [extensions.istio.io, networking.istio.io, security.istio.io, telemetry.istio.io]
  apiVersions: ["*"]
  operations: [CREATE, UPDATE]
  resources: ["*"]
{{- end }}

{{- /*
"true" if this release has an object that only one release can have, that of the default revision: from a dict of context, values, and kind
and name of the object. Another release, such as that of Istio's chart `base`, may have it. Helm refuses to take it over.
*/}}
{{- define "sluice.isDefault" -}}
{{- $existing := lookup "admissionregistration.k8s.io/v1" .kind "" .name }}
{{- $owner := dig "metadata" "annotations" "meta.helm.sh/release-name" "" $existing }}
{{- $isDefault := or (eq .values.defaultRevision (.values.revision | default "default")) (has "default" .values.revisionTags) }}
{{- if and $isDefault (or (empty $existing) (eq $owner .context.Release.Name)) }}true{{ end }}
{{- end }}

{{- /* The webhook for validation, from a dict of name, object (name of the configuration), revision (empty: all objects), values and context. */}}
{{- define "sluice.validationWebhook" -}}
{{- $base := .values.base -}}
- name: {{ .name }}
  clientConfig:
    {{- with $base.validationURL }}
    url: {{ quote . }}
    {{- else }}
    service:
      name: {{ include "sluice.name" .values }}
      namespace: {{ .context.Release.Namespace }}
      path: /validate
      port: 443
    {{- end }}
    {{- with $base.validationCABundle }}
    caBundle: {{ quote . }}
    {{- end }}
  rules:
  {{- include "sluice.validatedObjects" . | nindent 2 }}
  {{- with .revision }}
  objectSelector:
    matchExpressions:
    - {key: istio.io/rev, operator: In, values: [{{ quote . }}]}
  {{- end }}
  {{- with $base.validationFailurePolicy | default (ternary "Fail" "" (ne $base.validationCABundle "")) }}
  failurePolicy: {{ . }}
  {{- else }}
  {{- if not (lookup "admissionregistration.k8s.io/v1" "ValidatingWebhookConfiguration" "" .object) }}
  # sluiced sets it to Fail once the API server reaches the webhook.
  failurePolicy: Ignore
  {{- end }}
  {{- end }}
  admissionReviewVersions: [v1]
  sideEffects: None
{{- end }}
